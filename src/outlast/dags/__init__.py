"""What a DAG file is made of: DAGs, tasks, results passed between them, and the context a task runs in."""
