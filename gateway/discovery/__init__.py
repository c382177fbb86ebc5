"""Sources of pods behind one interface: static list, file, DNS, agents' registry in Redis, Kubernetes."""
