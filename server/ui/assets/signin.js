// @ts-check
/** Signing in: by the link of `ferry ui`, by a token, or not at all where the browser shows a client certificate. */

import { post, review as ask, send, session } from "./api.js";
import { h, replace } from "./dom.js";

/** Who the API says we are; nothing if it knows nobody. @returns {Promise<{ username: string, groups?: string[] } | null>} */
export async function whoAmI() {
  try {
    const review = await ask("/apis/authentication.k8s.io/v1/selfsubjectreviews", {
      apiVersion: "authentication.k8s.io/v1", kind: "SelfSubjectReview",
    });
    return review.status.userInfo;
  } catch (error) {
    if (/** @type {any} */ (error).code === 401) return null;
    throw error;
  }
}

/** The link's secret stands behind the `#`. It counts once, and leaves the address at once. */
export async function openLink() {
  const link = /^#link=([\w-]+)$/.exec(location.hash)?.[1];
  if (!link) return;
  history.replaceState(null, "", location.pathname);
  await signIn({ link });
}

/** @param {{ link: string } | { token: string }} shown */
async function signIn(shown) {
  session.end();
  const { key } = await post("/ui/sessions", shown);
  session.begin(key);
}

export async function signOut() {
  await send("/ui/sessions", { method: "DELETE" }).catch(() => {});
  session.end();
  location.hash = "";
  location.reload();
}

/** @param {string} problem */
export function signInView(problem) {
  const token = h("textarea", { id: "token", rows: 4, autocomplete: "off", spellcheck: "false", required: true });
  const said = h("p.problem", { role: "alert", hidden: !problem }, problem);
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    try {
      await signIn({ token: token.value.trim() });
      location.reload();
    } catch (error) {
      said.hidden = false;
      replace(said, /** @type {any} */ (error).code === 401 ? "The server does not accept this token." : /** @type {Error} */ (error).message);
    }
  };
  document.title = "Sign in · Ferry";
  replace(document.body, h("main.signin", { id: "main" },
    h("div.card", null,
      h("img", { src: "./icon.svg", alt: "", width: 44, height: 44 }),
      h("h1", null, "Ferry"),
      said,
      h("p", null, "Run this where you use kubectl, and open the link it prints. It works once, within two minutes:"),
      h("pre.command", { tabindex: 0 }, "ferry ui"),
      h("form", { onsubmit: submit },
        h("label", { for: "token" }, "Or paste a bearer token"),
        token,
        h("button.primary", { type: "submit" }, "Sign in")),
      h("p.muted", null, "A browser with a client certificate needs neither."))));
}
