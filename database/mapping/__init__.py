"""op_mapping.yaml: which kernel's rows tell a simulator the duration of an operator."""
