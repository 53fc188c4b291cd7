"""Where the GPUs come from: a machine for one job, registered as an ephemeral runner, and given back without fail.

One module a provider (ec2, ssh, slurm, kubernetes) behind the Protocol in model.py; all run the same bootstrap.sh.
"""
