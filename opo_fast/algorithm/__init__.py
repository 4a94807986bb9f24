"""OPO-CMDP: the paper's algorithm on one screen, its rules and parameters, and the engine that runs it fast."""
