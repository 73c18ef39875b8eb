// A browser starts no worker from a file. Where pages are opened from a folder, a hidden frame does the worker's
// work: its script runs there, and messages go by events in both directions.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.importScripts = (...names) => Promise.all(names.map((name) => this.load(inner, name)));
      this.load(inner, url).then(() => {
        this.inner = inner;
        for (const data of this.waiting) this.postMessage(data);
      });
    }

    load(inner, url) {
      return new Promise((done, fail) => {
        const script = inner.document.createElement("script");
        script.src = new URL(url, location.href);
        script.onload = done;
        script.onerror = fail;
        inner.document.head.append(script);
      });
    }

    postMessage(data) {
      if (this.inner) this.inner.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }

    terminate() {}
  };
}
