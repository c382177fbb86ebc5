"""What `hearth shadow` is made of: what it records, what pods report, the engines that fit it, the prediction."""
