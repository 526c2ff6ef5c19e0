"""`python -m grpo` is the command line, where no `grpo` is on the PATH."""

from grpo.cli import main

if __name__ == "__main__":
    main()
