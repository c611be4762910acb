"""Every method in every world at matched rollouts: play, then tables and figures."""
