"""From the distributions of the agents to one."""
