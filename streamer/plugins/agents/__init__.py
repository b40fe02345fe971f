"""Speech to text for voice agents: a service for Pipecat and a plugin for LiveKit Agents."""
