export default {
  fetch(request, env) {
    console.warn(`cf of ${request.url}: ${JSON.stringify(request.cf)}`);
    return new Response(env.KEY_SET);
  },
};
