// Adds buttons that copy programs and commands. Pages work without it.
"use strict";
(function () {
  function prepare(root) {
    root.querySelectorAll(".snippet").forEach(function (place) {
      if (place.querySelector("button")) return;
      const button = document.createElement("button");
      button.type = "button";
      const isCut = place.querySelector("[data-cut]") !== null;
      button.textContent = isCut ? "Copy cut" : "Copy";
      button.addEventListener("click", function () {
        navigator.clipboard.writeText(place.querySelector("code").textContent).then(
          function () { button.textContent = "Copied"; },
          function () { button.textContent = "Not copied: select the text"; }
        );
      });
      place.append(button);
    });
  }
  prepare(document);
  document.addEventListener("htmx:load", function (event) { prepare(event.detail.elt); });
})();
