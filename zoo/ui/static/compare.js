// Sounds side by side: one plays at a time, and changing between them keeps the position.
// Keys while it has the focus: space plays and pauses, a letter chooses a sound, the arrows move in time.
export default {
  template: `
    <div class="zoo-compare" role="group" :aria-label="title" @keydown="key">
      <audio v-for="(source, index) in sources" :key="source.url" :ref="set(index)" :src="source.url" preload="metadata"
             @timeupdate="tick(index)" @loadedmetadata="tick(index)" @pause="paused(index, $event.target)"></audio>
      <div class="zoo-compare-row">
        <button type="button" class="zoo-button" @click="toggle" :aria-label="(playing ? 'Pause' : 'Play') + ' ' + name">
          {{ playing ? "Pause" : "Play" }}</button>
        <button v-for="(source, index) in sources" v-show="sources.length > 1" :key="source.url" type="button"
                class="zoo-choice" :aria-pressed="String(index === current)" @click="choose(index)">
          <b>{{ letter(index) }}</b> {{ source.title }}</button>
        <span v-if="sources.length === 1">{{ name }}</span>
      </div>
      <div class="zoo-compare-row">
        <input type="range" min="0" step="0.01" :max="length || 0" :value="time" :aria-label="'Position in ' + name"
               :aria-valuetext="clock(time) + ' of ' + clock(length)" @input="seek(Number($event.target.value))">
        <span class="zoo-small zoo-clock">{{ clock(time) }} / {{ clock(length) }}</span>
      </div>
    </div>`,
  props: { sources: Array, title: String },
  data() {
    return { current: 0, playing: false, time: 0, length: 0 };
  },
  created() {
    this.players = [];
  },
  beforeUnmount() {
    this.players.forEach((player) => player?.pause());
  },
  computed: {
    name() {
      return this.sources[this.current]?.title || "";
    },
  },
  methods: {
    set(index) {
      return (player) => (this.players[index] = player);
    },
    letter(index) {
      return String.fromCharCode(65 + index);
    },
    clock(seconds) {
      return Number.isFinite(seconds) ? Math.floor(seconds / 60) + ":" + (seconds % 60).toFixed(1).padStart(4, "0") : "–";
    },
    tick(index) {
      if (index !== this.current) return;
      this.time = this.players[index].currentTime;
      this.length = this.players[index].duration;
    },
    paused(index, player) {
      if (index === this.current && player.paused) this.playing = false; // else it was started again since
    },
    toggle() {
      this.playing ? this.pause() : this.play();
    },
    play() {
      document.querySelectorAll("audio").forEach((other) => other.pause()); // those of other answers, too
      this.start();
    },
    start() {
      this.playing = true;
      this.players[this.current].play().catch((error) => {
        if (error.name !== "AbortError") this.playing = false; // else it was paused before it began
      });
    },
    pause() {
      this.players[this.current].pause();
      this.playing = false;
    },
    seek(seconds) {
      this.players[this.current].currentTime = seconds;
      this.time = seconds;
    },
    choose(index) {
      if (index === this.current || index >= this.sources.length) return;
      const before = this.players[this.current];
      const next = this.players[index];
      before.pause();
      next.currentTime = Math.min(before.currentTime, next.duration || before.currentTime);
      this.current = index;
      this.tick(index);
      if (this.playing) this.start();
    },
    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const index = event.key.length === 1 ? event.key.toUpperCase().charCodeAt(0) - 65 : -1;
      if (event.key === " " && event.target.tagName !== "BUTTON") this.toggle();
      else if (index >= 0 && index < this.sources.length) this.choose(index);
      else return;
      event.preventDefault();
    },
  },
};
