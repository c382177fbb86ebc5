"""The key API: operators and tenants manage API keys over HTTP. Loaded only where configured."""
