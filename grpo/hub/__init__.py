"""What comes from the Hugging Face hub: fetched once with a network, used without."""
