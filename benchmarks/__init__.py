"""Speed against something else, measured alternately in one go, so that a busy machine slows both."""
