"""The whole story on one machine: a throwaway SSH host, a real small engine, and the real commands of orch."""
