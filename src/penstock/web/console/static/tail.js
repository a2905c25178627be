// Shows the new events of a stream as they are stored. Contents are set as text, never as markup.
"use strict";
(function () {
  const LINES_MAX = 500;
  const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;
  const place = document.querySelector("[data-tail]");
  const list = document.getElementById("lines");
  const state = document.getElementById("state");
  const button = document.getElementById("pause");
  if (place === null) return;
  let source = null;
  let count = 0;
  let isPaused = false;
  let lastId = "";
  function say(text) { state.textContent = text; }
  function shown(text) {
    return text.replace(HIDDEN, function (sign) { return "\\u" + sign.charCodeAt(0).toString(16).padStart(4, "0"); });
  }
  function add(where, text) {
    const line = document.createElement("li");
    const label = document.createElement("b");
    label.textContent = where;
    const content = document.createElement("bdi");
    content.textContent = shown(text);
    line.append(label, content);
    list.prepend(line);
    while (list.childElementCount > LINES_MAX) list.lastElementChild.remove();
  }
  function segment(id) {
    const epoch = Math.floor(id / 4294967296);
    return "segment " + (id % 4294967296) + (epoch ? " (epoch " + epoch + ")" : "");
  }
  function follow() {
    // After a pause the stream continues where it was: nothing is skipped.
    const at = lastId ? "&at=" + encodeURIComponent(lastId) : "";
    source = new EventSource(place.dataset.tail + at);
    source.onopen = function () { say("live, " + count + " events"); };
    source.onmessage = function (message) {
      const event = JSON.parse(message.data);
      if (message.lastEventId) lastId = message.lastEventId;
      count += 1;
      add(segment(event.segment) + " at " + event.offset, "text" in event ? event.text : "(not text, base64) " + event.base64);
      say("live, " + count + " events");
    };
    source.addEventListener("gap", function (message) {
      const gap = JSON.parse(message.data);
      add("gap", (gap.to - gap.from) + " bytes of " + gap.segment + " were truncated before they were shown");
    });
    source.addEventListener("end", function () { stop(); say("the stream is sealed and was shown to its end"); });
    source.addEventListener("error", function (message) {
      if (message.data) { stop(); say("ended: " + JSON.parse(message.data).message); return; }
      if (source !== null && source.readyState === EventSource.CLOSED) say("not connected: reload the page");
      else say("the connection was lost, connecting again");
    });
  }
  function stop() { if (source !== null) source.close(); source = null; }
  button.hidden = false;
  button.addEventListener("click", function () {
    isPaused = !isPaused;
    button.textContent = isPaused ? "Continue" : "Pause";
    button.setAttribute("aria-pressed", String(isPaused));
    if (isPaused) { stop(); say("paused after " + count + " events"); } else follow();
  });
  follow();
})();
