package job

// Var is one variable of a worker's environment.
type Var struct {
	Name, Value string
	Source      Source
	// Own is true where another worker, attempt or round has, or may have, another value.
	Own bool
	// Expand asks for $NAME and ${NAME} in the value to be replaced on the node where the worker runs; see
	// EnvRules.Set.
	Expand bool
	// Secret is true where the value, or a part of it, comes from a Secret: nothing of it is shown, whatever its name is.
	Secret bool
}
