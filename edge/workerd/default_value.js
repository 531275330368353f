// The value of a variable, or its default when it is unset or empty: workerd itself has no defaults.
export default ({ value, default: fallback }) => value || fallback;
