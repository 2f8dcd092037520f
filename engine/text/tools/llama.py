"""`{"name": ..., "parameters": {...}}` as all of an answer, several with `;` between them: Llama 3.x."""

from __future__ import annotations

from engine.text.stop import without_begun
from engine.text.tools.calls_in_json import CallsInJson
from engine.text.tools.events import Event
from engine.text.tools.marks import LLAMA_TAG as TAG


class LlamaJsonParser(CallsInJson):
    """An answer that begins otherwise is text to its end."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(names)
        self._text = False

    def outside(self, events: list[Event]) -> bool:
        if not self._text:
            return self._begin()
        events.append(self.held)
        self.held = ""
        return True

    def after(self, refused: str | None, events: list[Event]) -> None:
        if refused is not None:
            events.append(refused)
            self._text = True

    def rest(self, within: bool, events: list[Event], *, cut: bool) -> None:
        if self._text or not self.calls:
            events.append(without_begun(self.held, TAG) if cut and not self._text else self.held)

    def _begin(self) -> bool:
        """Before a call: one tag may come before the first, white space and semicolons before the others."""
        begins = self.held.lstrip(" \t\r\n;" if self.calls else None)
        may_be_tag = not self.calls and not self.marks
        if may_be_tag and begins.startswith(TAG):
            begins, self.marks, may_be_tag = begins.removeprefix(TAG).lstrip(), True, False
        if self.marks and not self.calls:
            self.held = begins
        if not begins or (may_be_tag and TAG.startswith(begins)):
            return False
        if begins[0] == "{":
            self.begin(begins)
        else:
            self._text = True
            if self.calls:
                self.held = begins
        return True
