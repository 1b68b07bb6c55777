"use strict";
/* The words of the pages, and those that a database has for qualities, statuses and caches. English words are keys. */
const opatlas = {};

/* Words of a database are looked up here: without a prototype, whose members would be found as well. */
opatlas.chinese = Object.assign(Object.create(null), {
  "OpAtlas": "OpAtlas", "skip to the contents": "跳到正文", "overview": "概览", "implementations": "实现对比",
  "comparison": "数据库对比", "collectives": "集合通信", "models": "模型开销", "theme": "主题", "light": "浅色",
  "dark": "深色", "as the system": "跟随系统", "language": "语言",
  "database": "数据库", "device": "设备", "runs": "运行", "newest run": "最近一次运行", "quality": "质量",
  "status": "状态", "cache": "缓存", "instrument": "测量手段", "shipped": "随附说明", "peaks": "峰值", "not known": "未知",
  "kernel type": "算子类型", "kernel types": "算子类型", "rows": "行数", "with a duration": "有耗时", "coverage": "覆盖率",
  "median": "中位数", "dtypes": "数据类型", "dtype": "数据类型", "format": "格式", "find a row by its name": "按名称查找行",
  "open": "打开", "problems": "问题", "row": "行", "close": "关闭",
  "input shapes": "输入形状", "output shapes": "输出形状", "implementation": "实现", "reason": "原因", "run": "运行",
  "duration": "耗时", "median duration": "耗时中位数", "standard deviation": "标准差", "noise": "噪声", "samples": "样本数",
  "bytes": "字节", "arithmetic rate": "算力", "bandwidth": "带宽", "bus bandwidth": "总线带宽", "bytes of the message": "消息字节数",
  "devices": "设备数", "tier": "拓扑层", "sequences": "序列数", "queries": "查询数", "keys": "键数", "pairs": "查询-键对数",
  "heads": "头数", "KV heads": "KV 头数", "head size": "头大小", "pages": "页数", "batch": "批", "all": "全部",
  "shape or size": "形状或大小", "such as 7168 m>=128": "例如 7168 m>=128", "no filters": "清除筛选",
  "of": "/", "rows that match": "符合条件的行", "page": "页", "previous": "上一页", "next": "下一页", "first": "首页", "last": "末页",
  "table": "表格", "plot": "图", "roofline": "Roofline", "horizontal": "横轴", "vertical": "纵轴", "colour": "颜色",
  "points": "点数", "the filters show the others": "用筛选查看其余的点",
  "each point is a row; a click opens it": "每个点是一行，点击即可打开",
  "operations per byte": "每字节运算数", "memory": "内存", "nothing to plot": "没有可画的数据",
  "memory bandwidth over bytes": "内存带宽随字节数", "dimension": "维", "input": "输入",
  "baseline": "基准", "rival": "对比方", "speed-up": "加速比", "verdict": "结论", "measured": "已测", "failed": "失败",
  "unsupported": "不支持", "missing": "缺失", "covered": "覆盖行几何平均", "deployed": "部署几何平均", "total": "合计",
  "fastest": "最快", "rows side by side": "逐行并列", "baseline's status": "基准状态",
  "covered: geometric mean of the speed-ups over rows that are FAST, SLOW or SAME; deployed: with 1 for rows that the rival did not measure":
    "覆盖行几何平均：结论为 FAST、SLOW 或 SAME 的行的加速比；部署几何平均：对比方没有测过的行按 1 计",
  "part": "部分", "calls": "次数", "each": "每次", "share": "占比", "how known": "依据",
  "90 % interval": "90 % 区间", "sum": "总和", "tokens/s": "token/s",
  "sum: one kernel after another, no gaps between launches, nothing overlaps": "总和：算子逐个执行，下发之间没有间隙，没有重叠", "by kernel type": "按算子类型",
  "without what is missing": "不含缺失部分", "with differences": "与原模型的差异", "of the sum is that of compositions of operators": "的总和来自算子组合",
  "of the sum may be that of compositions: the rows do not tell": "的总和可能来自算子组合：行中未说明",
  "loading": "正在载入", "there is no such page": "没有这个页面", "no row has this name": "没有叫这个名字的行",
  "groups": "组数", "composition of operators": "算子组合", "yes": "是", "no": "否", "not told": "未说明", "machines": "机器数",
  "rows by number of machines": "按机器数统计的行",
  "spread of the machines": "机器间差异",
  "written by": "生成自", "interpolated": "插值", "extrapolated": "外推", "analytic": "解析",
  "never run": "未运行", "not judged": "未评定", "composition": "算子组合", "quiet": "平稳",
  "noisy": "噪声大", "drifting": "漂移", "bimodal": "双峰", "throttled": "降频", "cold": "冷", "warm": "热",
  "invalid": "行无效", "crashed": "崩溃", "timeout": "超时", "oom": "内存不足", "device-error": "设备错误", "skipped": "跳过",
  "diagnosis": "诊断", "verdicts": "结论", "roofline share": "Roofline 占比", "time lost": "损失时间", "rule": "规则", "source": "来源",
  "share of the time": "时间占比", "what to do first": "首先做什么", "the most time lost": "损失时间最多的行",
  "time lost: duration × (1 − roofline share), of rows whose work and peaks are known": "损失时间：耗时 ×（1 − Roofline 占比），仅限工作量和峰值已知的行",
  "duration (µs)": "耗时 (µs)",
  "above roofline": "高于 Roofline", "unknown": "未知", "ascending": "升序", "descending": "降序",
  "durations": "耗时", "captured": "采集", "replayed": "回放", "launches": "启动次数", "time of all launches": "全部启动的时间",
  "ranked by the time lost; rows without known work or peaks by their whole time": "按损失时间排序；工作量或峰值未知的行按全部时间计",
  "Durations of operators": "算子耗时", "rows of": "行，算子类型：", "median 90 % interval": "90 % 区间（中位数）", "also on another device of this type": "也适用于同型号的其他设备",
  "of the roof, in the median": "Roofline 占比（中位数）", "of the peak rate, or of the bandwidth": "峰值算力或带宽", "quiet samples": "样本平稳",
  "where the time of a step goes": "一步的时间花在哪里", "sequences of": "条序列，每条", "tokens each": "个 token", "decode": "解码", "the newest run": "最近一次运行", "rows measured": "行已测量",
  "of them again": "行为重测", "in the median": "（中位数）", "slower": "行变慢", "faster": "行变快", "from": "自", "trend over runs": "随运行变化", "databases": "数据库",
  "share of the roof": "Roofline 占比", "the width is the share of the time; a dashed edge: predicted": "宽度为时间占比；虚线边：预测值",
  "does not run": "无法运行", "no total": "没有总和", "parts without rows": "没有数据的部分", "kernels": "算子", "gaps between them, and their place in the step": "间隙及其在步中的位置",
  "model": "模型", "context": "上下文", "tp": "张量并行", "ep": "专家并行", "stack": "软件栈", "of the database": "数据库所列", "parts": "组成部分", "layers": "层",
  "the same over the batch": "随批大小的变化", "a step": "一步", "steps that were asked for": "指定的步", "shape": "形状", "speed-ups by kernel type": "按算子类型的加速比",
  "speed-up over the baseline: blue is faster, orange slower, without a colour not certain": "相对基准的加速比：蓝色更快，橙色更慢，无色为不确定",
  "curves": "曲线", "single points": "散点", "keys of each sequence": "每序列键数", "tokens": "token 数", "only this curve": "只看这条曲线",
  "grey": "灰色", "others; a filter shows them": "条其余曲线，用筛选查看", "neighbours": "相邻行", "of this row": "与本行之比",
  "the prediction through it": "经过该行的预测", "the rows beside it": "旁边的行", "prediction": "预测", "history": "历史", "day": "日期",
  "line: the model of the rows; band: its 90 % interval; points: measured, with their intervals": "线：由各行拟合的模型；带：其 90 % 区间；点：测得的值及其区间",
  "against the newest": "与最新值相比", "copy": "复制", "copied": "已复制", "all cells": "全部字段", "all rows": "所有行", "90 % interval, ±": "90 % 区间 ±",
  "rule and calls": "规则与接口",
  "rows whose launches captures count": "由采集数据给出启动次数的行",
});

/** Reads and keeps a setting of the reader; a browser may refuse to keep any for files. */
opatlas.setting = function (name, value) {
  try {
    if (value !== undefined) localStorage.setItem("opatlas." + name, value);
    return localStorage.getItem("opatlas." + name);
  } catch (error) {
    return null;
  }
};

opatlas.language = opatlas.setting("language") || (navigator.language.startsWith("zh") ? "zh" : "en");

/** Returns a word in the reader's language. */
opatlas.t = (word) => (opatlas.language === "zh" && opatlas.chinese[word]) || word;
