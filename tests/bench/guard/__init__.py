"""The guard in a closed loop: its own code on a modelled device, in accelerated time."""
