"""Policy chains: the paper's Algorithm 1 in NumPy, the rules and parameters of OPO-CMDP and its competitors, and the fast engine."""
