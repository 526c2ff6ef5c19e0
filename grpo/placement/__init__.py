"""Where policy and engine live in each phase, and the only code that moves them."""
