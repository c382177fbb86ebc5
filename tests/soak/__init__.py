"""Hours at half load with churn: whatever a gateway holds on to must stay as much as it was."""
