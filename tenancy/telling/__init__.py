"""What a policy means, told to people: explained, compared with another, and tried on traffic that was."""
