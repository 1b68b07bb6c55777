"""MoeDistributeDispatch and MoeDistributeCombine, which send tokens to the ranks of their experts, and back."""
