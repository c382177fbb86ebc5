"""What operators see: request log, route log, metrics, receipts and the admin port."""
