"""python -m edgeproxy."""

from edgeproxy.cli import main

if __name__ == "__main__":
    main()
