// The value of a variable, or what it is when it is unset: workerd itself knows no defaults.
export default ({ value, otherwise }) => value || otherwise;
