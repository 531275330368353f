// Returns a variable's value, or its default if it is unset or empty. workerd has no defaults for variables.
export default ({ value, default: fallback }) => value || fallback;
