// What a caller may do; core checks the role of each call again.

const ROLES = ["viewer", "operator", "admin"];

// Returns whether `role` is `least` or higher.
export const hasRole = (role, least) => ROLES.indexOf(role) >= ROLES.indexOf(least);
