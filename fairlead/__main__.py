"""``python -m fairlead`` is the same as ``fairlead``."""

from fairlead.command import main

if __name__ == "__main__":
    main()
