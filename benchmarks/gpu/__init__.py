"""Speed and memory of the policy workers on one GPU, against bare loops and the plan."""
