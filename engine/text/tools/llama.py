"""`{"name": ..., "parameters": {...}}` as all of an answer, several with `;` between them: Llama 3.x."""

from __future__ import annotations

from engine.text.tools.events import Event, Parser
from engine.text.tools.json_call import JsonCall
from engine.text.tools.marks import LLAMA_TAG as TAG


class LlamaJsonParser(Parser):
    """An answer that begins otherwise is text to its end."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(names)
        self._held = ""
        self._call: JsonCall | None = None
        self._text = False

    def push(self, text: str) -> list[Event]:
        self._held += text
        events: list[Event] = []
        while self._held and self._step(events):
            pass
        return events

    def finish(self) -> list[Event]:
        events: list[Event] = []
        if self._call is not None:
            events += self._call.finish()
            self._end(self._call, events)
        if self._text or not self.calls:
            events.append(self._held)
        self._held = ""
        return events

    def _step(self, events: list[Event]) -> bool:
        if self._text:
            events.append(self._held)
            self._held = ""
        elif self._call is not None:
            text, self._held = self._held, ""
            events += self._call.push(text)
            if self._call.ended:
                self._end(self._call, events)
        else:
            return self._begin()
        return True

    def _begin(self) -> bool:
        """Before a call: the tag may come before the first, white space and semicolons before the others."""
        begins = self._held.lstrip(" \t\r\n;") if self.calls else self._held.lstrip().removeprefix(TAG).lstrip()
        if not begins or (not self.calls and TAG.startswith(begins)):
            return False
        if begins[0] == "{":
            self._held, self._call = begins, JsonCall(self.names, self.calls)
        else:
            self._text = True
            if self.calls:
                self._held = begins
        return True

    def _end(self, call: JsonCall, events: list[Event]) -> None:
        self.calls, self._call, self._held = call.index, None, call.rest
        if call.refused is not None:
            events.append(call.refused)
            self._text = True
