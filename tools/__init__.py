"""Programs for people: fetch a known model, run the demo, check and test the checkout."""
