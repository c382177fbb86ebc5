"""The operators' page in a real browser, headless: `make test-page`."""
