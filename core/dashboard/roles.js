// Permissions by role. Core enforces them on every call; these only hide controls.

const ROLES = ["viewer", "operator", "admin"];

// Returns whether `role` is `least` or higher.
export const hasRole = (role, least) => ROLES.indexOf(role) >= ROLES.indexOf(least);
