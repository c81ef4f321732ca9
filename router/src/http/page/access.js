// The API key: asked for when the server wants one, kept in this tab's sessionStorage, nowhere else.

const PLACE = "penstock-key";
// What no key has, and no header takes: a zero-width space that was copied with it.
const FOREIGN = /[^\x21-\x7e]/;
const byId = (id) => document.getElementById(id);

export class Access {
  #key = read();
  #wanted = false;
  #waiting = [];

  /** `changed` is called when there is another key to try. */
  constructor(changed) {
    this.changed = changed;
    const dialog = byId("key-dialog");
    byId("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const key = byId("key").value.trim();
      if (FOREIGN.test(key)) return this.#open("The key has a character that no key has.");
      this.#use(key);
      dialog.close("given");
    });
    byId("key-cancel").addEventListener("click", () => dialog.close());
    byId("change-key").addEventListener("click", () => this.#open("Leave it empty to forget the key."));
    dialog.addEventListener("close", () => {
      byId("key").value = "";
      const given = dialog.returnValue === "given";
      dialog.returnValue = "";
      for (const answer of this.#waiting.splice(0)) answer(given);
    });
    this.#show();
  }

  /** What to send: a key, or "" for none. */
  get key() {
    return this.#key;
  }

  /** The server wants a key, or another one, and the user has not given it yet. */
  get wanted() {
    return this.#wanted;
  }

  /** A request with `key` got a 401: asks the user. Resolves to whether there is another key to try. */
  refused(key) {
    if (key !== this.#key) return Promise.resolve(true);
    this.#wanted = true;
    const answer = new Promise((resolve) => this.#waiting.push(resolve));
    this.#open(key ? "The key is not valid." : "");
    return answer;
  }

  #open(words) {
    byId("key-wrong").textContent = words;
    if (!byId("key-dialog").open) byId("key-dialog").showModal();
    byId("key").focus();
  }

  #use(key) {
    this.#key = key;
    this.#wanted = false;
    try {
      if (key) sessionStorage.setItem(PLACE, key);
      else sessionStorage.removeItem(PLACE);
    } catch {
      // Storage is forbidden here: the key lives as long as the page.
    }
    this.#show();
    this.changed();
  }

  #show() {
    byId("key-section").hidden = !this.#key;
  }
}

function read() {
  try {
    return sessionStorage.getItem(PLACE) ?? "";
  } catch {
    return "";
  }
}
