"""An edge site whose backhaul is cut: how soon the fleet answers alone, and how soon escalation resumes."""
