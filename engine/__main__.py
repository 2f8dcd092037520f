from engine.cli import main

main(prog_name="engine")
