"use strict";
// The page of a decision: a mark that moves along the line of its picture, and what is read there.

const points = JSON.parse(document.getElementById("data").textContent);
const place = document.getElementById("place"), words = document.getElementById("words");
const [upright, dot] = document.getElementById("mark").children;

function showPlace() {
  const [x, y, said] = points[Number(place.value)];
  upright.setAttribute("x1", x);
  upright.setAttribute("x2", x);
  dot.setAttribute("cx", x);
  dot.setAttribute("cy", y);
  words.textContent = said;
  place.setAttribute("aria-valuetext", said);
}

// The mark can be taken to a place of the picture as well.
function takePlace(event) {
  const drawn = dot.ownerSVGElement, box = drawn.getBoundingClientRect();
  const x = ((event.clientX - box.left) / box.width) * drawn.viewBox.baseVal.width;
  const far = points.map(([at]) => Math.abs(at - x));
  place.value = far.indexOf(Math.min(...far));
  showPlace();
}

place.addEventListener("input", showPlace);
dot.ownerSVGElement.addEventListener("click", takePlace);
showPlace();
document.documentElement.dataset.ready = "true";
