"""``python -m example_project``: the shop at work, in half a minute."""

from .demo.command import main

if __name__ == "__main__":
    main()
