// What stands on a page, put together. The data lie in the page; nothing is fetched.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);

for (const button of document.querySelectorAll("th button")) sortOnClick(button);
const figures = new Figures(data.figures);
const requests = data.requests && new RequestTable(data.requests, figures);
const map = data.block_map && new BlockMap(data.block_map, data.requests);
if (map) {
  figures.listeners.push((seconds) => map.seekTime(seconds));
  requests.listeners.push((request) => map.light(request));
  map.listeners.push((seconds) => figures.setTime(seconds));
  map.draw();
}
