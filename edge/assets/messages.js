// Texts by key or problem code. `fill` in display.js explains "|" and {value}.

const en = {
	tag: "en", brand: "claimgate", links: {}, support: "Support", terms: "Terms", list: "Campaigns",
	state: { loading: "Loading…", scheduled: "Not open yet", open: "Open now" },
	button: { open: "Claim yours", sending: "Sending…", retrying: "Checking again…" },
	units: ["days", "hours", "minutes", "seconds"],
	opensIn: "Opens in", endsIn: "Ends in", noEnd: "No end date", at: "{to_at}, your time",
	leftLabel: "", left: "left| of {total}", unlimited: "Unlimited",
	zones: null, limits: "{per_user_per_day} per day ({zone})|{per_user} in total", perPerson: "Per person: ", noLimits: "no limit",
	yours: "Your number", copy: "Copy", copied: "Copied",
	idle: "One tap is enough: a reload or a lost connection never counts twice.",
	pass: {
		waiting: "You need a pass for this campaign. This page gets it for you before the opening.",
		solving: "Getting your pass. This takes a few seconds; if a question appears here, please answer it.",
		shown: "You have a pass, valid until {expires_at}.",
		failed: "This page could not get a pass.| It tries again in {seconds} s.",
	},
	asking: ["Not confirmed yet, checking again", "If your claim was received, it is yours. Checking again never claims twice."],
	again: "Try again| in {seconds} s", another: "Claim another",
	others: "Also yours: No. {numbers}", more: "You can claim {left} more.", full: ". ",
	you: "Signed in as {user}", otherUser: "You are signed in as {user}. Switch to {other}?", stay: "Continue as {user}", switchTo: "Switch to {other}", request: "Request ID: {instance}",
	granted: ["It is yours", "Claimed: {claimed_at}.| {proof}"],
	keepId: "Keep this ID as your proof.",
	codes: ["Your code appears here in a moment.", "Here is your code. Keep it secret: anyone who has it can use it."],
	held: ["Reserved for you", "{hold}"],
	hold: "Held until {until}|, {left} left|. {next}", span: "{hours} h |{minutes} min |{seconds} s",
	buy: ["Complete your purchase in the shop that sent you here.", "Complete your purchase before then."], checkout: "Go to checkout",
	hurry: "Less than {minutes} min left.",
	due: ["Checking your reservation", "It was held until {expires_at}. If you completed your purchase by then, it is yours."],
	replayed: ["You already have this claim", "Claiming again did not create a second claim.| {hold}| {code}"],
	problem: ["That did not work", "Please try again in a moment."],
	claim: ["We found your claim", "Its status is “{status}”, which this page does not recognize. Please reload it."],
	not_started: ["Not open yet", "Opens: {starts_at}.| No need to reload this page."],
	ended: ["This campaign has ended", "Closed: {ends_at}.| Granted claims stay valid.| {see}"], see: "Sign in to see yours.",
	paused: ["Paused for now", "No need to reload this page."],
	pass_required: ["You need a pass", "Please open this page through the link that has your pass.| From {until_at} on, you can claim without one."],
	no_pass: ["You have no pass yet", "Your claim was not sent. Please try again in a moment."],
	insecure: ["This page needs HTTPS", "Please open it with https:// at the beginning of its address."],
	sold_out: ["All taken", "None are left right now. If one is returned, you can claim it here."],
	user_limit_reached: ["You have reached your limit", "The limit is {per_user} per person.| You can still take {remaining}."],
	user_daily_limit_reached: ["You have reached today's limit", "The limit is {per_user_per_day} per day.| You can still take {remaining}.| Try again from {resets_at}."],
	claim_expired: ["Your reservation has expired", "It was not completed in time."],
	claim_returned: ["This claim was returned", "It is no longer yours."],
	claim_revoked: ["This claim was revoked", "This was a fault on our side. Please contact support."],
	rate_limited: ["Too many requests", "Please wait {seconds} s.| Your claim is not lost."],
	unauthenticated: ["Please sign in first", "Open this page through the link in your account."],
	signInFirst: ["Please sign in first", "You will come back to this page."], signIn: "Sign in", signOut: "Sign out",
	signingIn: "Signing in…", signInFailed: ["You are not signed in", "The sign-in was not completed. Nothing was claimed."], back: "Back to the page",
	forbidden: ["Not allowed", "Your account cannot claim here."],
	campaign_not_found: ["No such campaign", "Please check the link."],
	claim_not_found: ["We cannot find this claim", "Please contact support, or claim again."],
	invalid_request: ["That did not work", "This page may be out of date. Please reload it."],
	campaign_not_ready: ["Getting ready", "The counts are being restored. This does not mean that all are taken."],
	overloaded: ["Very busy right now", "Your last request was not processed. Please try again."],
	not_configured: ["Currently unavailable", "Your last request was not processed. Please try again later."],
	user_ids_differ: ["Currently unavailable", "Your last request was not processed. Please try again later."],
	offer: { scheduled: "Opens: {starts_at}", open: "{remaining} left|Ends: {ends_at}" },
	noneListed: "There is no campaign right now.",
	no_campaign: ["The link names no campaign", "Please use the link that you were given."],
	loading: "This page will keep trying.",
	unavailable: ["Not confirmed yet"],
	network: ["Connection lost"],
};

const zh = {
	tag: "zh-CN", brand: "claimgate", links: {}, support: "客服", terms: "活动条款", list: "活动列表",
	state: { loading: "加载中…", scheduled: "尚未开始", open: "进行中" },
	button: { open: "立即领取", sending: "提交中…", retrying: "重新确认中…" },
	units: ["天", "时", "分", "秒"],
	opensIn: "距开始", endsIn: "距结束", noEnd: "不限时", at: "{to_at}（您所在时区）",
	leftLabel: "剩余", left: "份|（共 {total} 份）", unlimited: "不限量",
	zones: { "Asia/Shanghai": "上海时间" }, limits: "每天限 {per_user_per_day} 份（{zone}）|共 {per_user} 份", perPerson: "每人：", noLimits: "不限份数",
	yours: "您的序号", copy: "复制", copied: "已复制",
	idle: "点一次即可，刷新或断网也不会重复领取。",
	pass: {
		waiting: "参加此活动需要通行证，本页会在开始前为您获取。",
		solving: "正在获取通行证，需要几秒钟；如果此处出现提问，请回答。",
		shown: "您已有通行证，有效期至 {expires_at}。",
		failed: "未能获取通行证。|{seconds} 秒后自动重试。",
	},
	asking: ["结果未知，正在重新确认", "如果已经领到，就是您的；重新确认不会重复计数。"],
	again: "重试|（{seconds} 秒后）", another: "再领一份",
	others: "您的其他序号：{numbers}", more: "您还可以领 {left} 份。", full: "。",
	you: "当前用户：{user}", otherUser: "您已登录为 {user}，要切换到 {other} 吗？", stay: "继续使用 {user}", switchTo: "切换到 {other}", request: "请求编号：{instance}",
	granted: ["领取成功", "领取时间：{claimed_at}。|{proof}"],
	keepId: "请保存此编号作为凭证。",
	codes: ["兑换码稍后显示在这里。", "这是您的兑换码，请勿告诉他人：持有者即可使用。"],
	held: ["已为您保留", "{hold}"],
	hold: "保留至 {until}|，还剩 {left}|。{next}", span: "{hours} 小时 |{minutes} 分 |{seconds} 秒",
	buy: ["请返回商店页面完成购买。", "请在此之前完成购买。"], checkout: "前往付款",
	hurry: "剩余时间不足 {minutes} 分钟。",
	due: ["正在确认您的保留", "保留时间至 {expires_at}。如果您已在此之前完成购买，这一份就是您的。"],
	replayed: ["您已经领过这一份", "重复请求不会多领。|{hold}|{code}"],
	problem: ["操作未成功", "请稍后再试。"],
	claim: ["已找到您的领取记录", "当前状态为“{status}”，本页无法识别，请刷新页面。"],
	not_started: ["尚未开始", "{starts_at} 开始。|届时可直接领取，无需刷新。"],
	ended: ["活动已结束", "已于 {ends_at} 结束。|已领取成功的仍然有效。|{see}"], see: "登录后可查看您的领取记录。",
	paused: ["暂停领取", "恢复后可直接领取，无需刷新。"],
	pass_required: ["需要通行证", "请通过带有通行证的链接打开本页。|{until_at} 起无需通行证。"],
	no_pass: ["尚未获得通行证", "您的请求尚未发送，请稍后重试。"],
	insecure: ["本页需要 HTTPS", "请使用以 https:// 开头的地址打开本页。"],
	sold_out: ["已领完", "目前没有剩余。如有退回，可在此继续领取。"],
	user_limit_reached: ["您已领满", "每人最多领 {per_user} 份。|您还可以领 {remaining} 份。"],
	user_daily_limit_reached: ["您今天已领满", "每人每天最多领 {per_user_per_day} 份。|您还可以领 {remaining} 份。|{resets_at} 起可再次领取。"],
	claim_expired: ["保留已过期", "未按时完成，已自动退回。"],
	claim_returned: ["这份已退回", "它已不再属于您。"],
	claim_revoked: ["这份已被撤销", "因我们的系统故障被撤销，请联系客服。"],
	rate_limited: ["操作过于频繁", "请等待 {seconds} 秒。|您的请求不会丢失。"],
	unauthenticated: ["请先登录", "请通过您账户中的链接打开本页。"],
	signInFirst: ["请先登录", "登录后会回到本页。"], signIn: "登录", signOut: "退出登录",
	signingIn: "正在登录…", signInFailed: ["尚未登录", "登录没有完成，没有领取任何东西。"], back: "返回",
	forbidden: ["没有权限", "您的账户无权在此领取。"],
	campaign_not_found: ["活动不存在", "请检查链接是否正确。"],
	claim_not_found: ["找不到这条领取记录", "请联系客服，或重新领取。"],
	invalid_request: ["操作未成功", "页面可能已过期，请刷新。"],
	campaign_not_ready: ["正在准备", "正在恢复计数，不代表已领完。"],
	overloaded: ["系统繁忙", "上一次请求未被处理，请重试。"],
	not_configured: ["暂不可用", "上一次请求未被处理，请稍后再试。"],
	user_ids_differ: ["暂不可用", "上一次请求未被处理，请稍后再试。"],
	offer: { scheduled: "{starts_at} 开始", open: "剩余 {remaining} 份|{ends_at} 结束" },
	noneListed: "目前没有活动。",
	no_campaign: ["链接中未指定活动", "请使用您收到的链接。"],
	loading: "本页会自动重试。",
	unavailable: ["结果尚未确认"],
	network: ["连接中断"],
};

for (const words of [en, zh]) {
	words.unavailable.push(words.asking[1]);
	words.network.push(words.asking[1]);
	words.request_timeout = words.unavailable;
	words.not_found = words.campaign_not_found;
}

// Replaces texts by those of the brand (edge/brand). Lists are replaced as a whole.
function override(words, own = {}) {
	for (const [key, text] of Object.entries(own)) words[key] = typeof text === "string" || Array.isArray(text) ? text : { ...words[key], ...text };
}
override(en, globalThis.claimgateBrand?.words.en);
override(zh, globalThis.claimgateBrand?.words.zh);

export const languages = { en, zh };

// Returns the language that the URL or the browser prefers.
export const languageOf = (query) =>
	[query.get("lang"), ...navigator.languages].map((tag) => tag?.slice(0, 2)).find((tag) => languages[tag]) ?? "en";
