"""What the machine is: model, providers, graph, writers. Imports nothing else of ours."""
