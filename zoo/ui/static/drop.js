// Files for a form: dropped, chosen or recorded. They go to the server at once; the form learns the keys it gave them.
const PATH = "/_zoo/upload";

export default {
  template: `
    <div class="zoo-drop" :class="{over}" role="group" :aria-label="label" :aria-describedby="$attrs.id + '-said'"
         @dragover.prevent="over = true" @dragleave="over = false" @drop.prevent="drop">
      <div class="zoo-drop-label" aria-hidden="true">{{ label }}</div>
      <div class="zoo-drop-row">
        <button type="button" class="zoo-button" :disabled="busy" @click="$refs.input.click()"
                :aria-label="label + ': ' + choose">{{ choose }}</button>
        <button v-if="canRecord" type="button" class="zoo-button" :disabled="busy" @click="record"
                :aria-label="label + ': ' + (recorder ? 'stop recording' : 'record')">
          {{ recorder ? "Stop (" + seconds + " s)" : "Record" }}</button>
        <span class="zoo-small zoo-drop-hint">or drop here{{ accept ? ": " + accept.replaceAll(",", ", ") : "" }}</span>
        <input ref="input" type="file" hidden :multiple="multiple" :accept="accept" @change="pick"
               :aria-label="label" tabindex="-1">
      </div>
      <progress v-if="busy" :value="sent" max="1" :aria-label="label + ': upload'"></progress>
      <ul v-if="files.length" class="zoo-drop-files">
        <li v-for="file in files" :key="file.key">
          <span>{{ file.name }}</span>
          <button type="button" class="zoo-plain" @click="remove(file)" :aria-label="'Remove ' + file.name">Remove</button>
        </li>
      </ul>
      <div :id="$attrs.id + '-said'" role="status" class="zoo-small">{{ said }}</div>
      <div v-if="error || problem" role="alert" class="zoo-drop-error">{{ problem || error }}</div>
    </div>`,
  props: { label: String, accept: String, multiple: Boolean, sound: Boolean, error: String },
  data() {
    return { files: [], over: false, busy: false, sent: 0, said: "", problem: "", recorder: null, seconds: 0 };
  },
  computed: {
    choose() {
      return this.multiple ? "Choose files" : "Choose a file";
    },
    canRecord() {
      return this.sound && !!navigator.mediaDevices && typeof MediaRecorder !== "undefined";
    },
  },
  beforeUnmount() {
    this.release();
  },
  methods: {
    drop(event) {
      this.over = false;
      if (!this.busy) this.send([...event.dataTransfer.files]);
    },
    pick(event) {
      this.send([...event.target.files]);
      event.target.value = "";
    },
    remove(file) {
      this.files = this.files.filter((each) => each.key !== file.key);
      this.said = file.name + " removed";
      this.tell();
    },
    tell() {
      this.$emit("files", this.files.map((file) => file.key));
    },
    send(list) {
      if (!list.length) return;
      if (!this.multiple) list = list.slice(0, 1);
      const body = new FormData();
      for (const file of list) body.append("files", file, file.name);
      const request = new XMLHttpRequest();
      request.open("POST", PATH);
      request.upload.onprogress = (event) => (this.sent = event.lengthComputable ? event.loaded / event.total : 0);
      request.onload = () => {
        this.busy = false;
        if (request.status !== 200) return this.fail(request.responseText.slice(0, 300) || "refused");
        const kept = JSON.parse(request.responseText);
        this.files = this.multiple ? [...this.files, ...kept] : kept;
        this.said = kept.map((file) => file.name).join(", ") + " uploaded";
        this.tell();
      };
      request.onerror = () => {
        this.busy = false;
        this.fail("the server refused it, or cannot be reached; is it too large?");
      };
      this.problem = "";
      this.sent = 0;
      this.busy = true;
      this.said = "uploading";
      request.send(body);
    },
    fail(text) {
      this.said = "";
      this.problem = "Not uploaded: " + text;
    },
    async record() {
      if (this.recorder) return this.recorder.stop();
      this.problem = "";
      try {
        this.stream = await navigator.mediaDevices.getUserMedia({ audio: true });
      } catch (error) {
        return this.fail("the browser gives no microphone (" + error.name + ")");
      }
      const chunks = [];
      this.recorder = new MediaRecorder(this.stream);
      this.recorder.ondataavailable = (event) => chunks.push(event.data);
      this.recorder.onstop = () => {
        this.release();
        this.keep(new Blob(chunks));
      };
      this.seconds = 0;
      this.clock = setInterval(() => this.seconds++, 1000);
      this.recorder.start();
      this.said = "recording";
    },
    release() {
      clearInterval(this.clock);
      this.stream?.getTracks().forEach((track) => track.stop());
      this.stream = this.recorder = null;
    },
    async keep(blob) {
      const context = new AudioContext();
      try {
        const sound = await context.decodeAudioData(await blob.arrayBuffer());
        const name = "recording_" + new Date().toISOString().slice(11, 19).replaceAll(":", "") + ".wav";
        this.send([new File([wav(sound)], name, { type: "audio/wav" })]);
      } catch (error) {
        this.fail("the recording cannot be read (" + error.name + ")");
      } finally {
        context.close();
      }
    },
  },
};

// 16-bit PCM, one channel: what every reader of sound files knows
function wav(sound) {
  const heard = sound.getChannelData(0);
  const view = new DataView(new ArrayBuffer(44 + 2 * heard.length));
  const text = (at, word) => [...word].forEach((letter, index) => view.setUint8(at + index, letter.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + 2 * heard.length, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, sound.sampleRate, true);
  view.setUint32(28, 2 * sound.sampleRate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, 2 * heard.length, true);
  heard.forEach((value, index) => view.setInt16(44 + 2 * index, Math.max(-1, Math.min(1, value)) * 32767, true));
  return view.buffer;
}
