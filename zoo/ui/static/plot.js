// A chart of ECharts; after the first time it is drawn only while it is in view.
import { echarts } from "nicegui-echart";

const number = (v) =>
  v !== 0 && Math.abs(v) < 1e-3 ? v.toExponential(2) : v.toLocaleString("en", { maximumSignificantDigits: 6 });

export default {
  template: "<div></div>",
  props: { options: Object },
  mounted() {
    this.chart = echarts.init(this.$el, null, { renderer: "svg" });
    this.resizing = new ResizeObserver(() => this.chart.resize());
    this.resizing.observe(this.$el);
    this.looking = new IntersectionObserver((entries) => {
      this.seen = entries.at(-1).isIntersecting;
      if (this.seen && this.waiting) this.draw();
    });
    this.looking.observe(this.$el);
    this.draw();
  },
  beforeUnmount() {
    this.resizing.disconnect();
    this.looking.disconnect();
    this.chart.dispose();
  },
  methods: {
    update_chart() {
      this.waiting = true;
      if (this.seen) this.draw();
    },
    draw() {
      this.waiting = false;
      const { yAxis, tooltip, ...rest } = this.options;
      const shown = {
        ...rest,
        yAxis: { ...yAxis, axisLabel: { formatter: number } },
        tooltip: { ...tooltip, valueFormatter: number },
      };
      const count = this.chart.getOption()?.series?.length;
      this.chart.setOption(shown, { notMerge: count !== this.options.series.length });
    },
  },
};
