"""`python -m grpo`: the command line."""

from grpo.cli import main

if __name__ == "__main__":
    main()
